"""`raytrain`: run a step, see what runs do, keep a storage tidy, manage the embedded cluster.

One module for each group of commands, put together in `commands`. Data goes to stdout, as text or with `--json` as one JSON
document; progress, remarks and errors go to stderr. Every exit code is in `exit_codes`.

Nothing about runs is decided here: that is in `supervisor`.
"""

from plugin_core.cli.commands import app as app
from plugin_core.cli.commands import main as main
from plugin_core.cli.output import err as err
