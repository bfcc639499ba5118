"""What tests share: fakes, contracts, canaries, hosts and clouds. Servers and Ray heads are in `devtools`."""
