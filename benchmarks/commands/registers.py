"""TODO registers."""
def add_arguments(p): pass
def run(o): return []
