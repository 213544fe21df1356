"""What a training leaves in its `output_dir`: what it was, its log and its completions tables."""
