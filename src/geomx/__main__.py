"""`python -m geomx` is the command `geomx`."""

from geomx.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
