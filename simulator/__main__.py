"""``python -m simulator``: the command line without its entry point."""

from simulator.cli import main

if __name__ == "__main__":
    main()
