"""What trees are boosted towards: one file an objective."""
