"""The 72 kinds of expressions, each compiled to a closure over one scope."""
