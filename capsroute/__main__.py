"""`python -m capsroute` is the `capsroute` command (what torchrun needs)."""

from capsroute.cli import main

if __name__ == "__main__":
    main()
