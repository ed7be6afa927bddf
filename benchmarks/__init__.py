"""One script for each claim; each prints ratios against a peer or a limit, side by side in one run."""
