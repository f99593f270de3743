"""Entry point of ``python -m simcluster``, which runs the command line."""

from simcluster.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
