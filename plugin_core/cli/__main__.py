"""`python -m plugin_core.cli` is `raytrain`."""

from plugin_core.cli.commands import main

if __name__ == "__main__":
    main()
