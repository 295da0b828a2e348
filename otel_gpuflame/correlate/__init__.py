"""What observed calls mean: pure, vectorised functions over arrays of calls."""
