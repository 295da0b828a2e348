"""From correlated calls to profiles: windows, samples, totals that add up."""
