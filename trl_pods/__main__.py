"""`python -m trl_pods`, as `trl-pods`."""

from .cli.main import main

if __name__ == "__main__":
    main()
