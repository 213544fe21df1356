"""The method: sample n rollouts of each prompt, keep m."""
