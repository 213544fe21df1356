"""What is checked before and while a training runs."""
