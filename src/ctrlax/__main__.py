"""`python -m ctrlax`, the same as the command `ctrlax`."""

from ctrlax.cli import main

if __name__ == "__main__":
    main()
