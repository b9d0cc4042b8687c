"""Any actions of a flow domain, drawn by hypothesis."""
