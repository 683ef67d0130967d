"""Changes of source: operations of fixes are converted to edits with libcst, and edits are applied to files."""
