"""What measures the training programs: datasets and an environment that they are trained on, and tables of their results."""
