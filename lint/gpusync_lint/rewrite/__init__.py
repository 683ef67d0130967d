"""Changes of source: the edits that libcst makes of the operations of fixes, and applying them."""
