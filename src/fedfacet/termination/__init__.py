"""What ends a run before all its rounds are done."""
