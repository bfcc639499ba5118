#!/usr/bin/env bash
# One host of a Ray cluster, without containers or Kubernetes. Runs until it is ended: let systemd, srun or ssh watch it.
#
#     ray_host.sh head [RAY OPTION...]          on the first host; takes jobs at port 8265
#     ray_host.sh worker HEAD [RAY OPTION...]   on each other host; HEAD is the first one's name or address, waited for
#
# RAY_AUTH_TOKEN: a secret, the same on all hosts, for example from `openssl rand -hex 32`.
# RAY_NODE_IP: this host's address, if it has several and the first is not the one that the other hosts reach.
set -euo pipefail

port=6379
: "${RAY_AUTH_TOKEN:?set it to a secret, the same on all hosts}"
export RAY_AUTH_TOKEN RAY_AUTH_MODE=token
address=${RAY_NODE_IP:-$(hostname -I | cut -d' ' -f1)}

case "${1:-}" in
head)
    place=(--head --port=$port --dashboard-host=0.0.0.0 --dashboard-port=8265)
    shift
    ;;
worker)
    head=${2:?expected the name or address of the head}
    until (: <>"/dev/tcp/$head/$port") 2>/dev/null; do sleep 1; done
    place=(--address="$head:$port")
    shift 2
    ;;
*)
    echo "usage: $0 head [RAY OPTION...] | worker HEAD [RAY OPTION...]" >&2
    exit 2
    ;;
esac
exec ray start --block --disable-usage-stats --node-ip-address="$address" "${place[@]}" "$@"
