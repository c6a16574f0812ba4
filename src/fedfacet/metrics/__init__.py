"""Group metrics that add up."""
