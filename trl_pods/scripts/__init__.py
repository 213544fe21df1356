"""Training scripts, which the command line runs and a launcher of several processes can run as modules."""
