"""One module a command: `add_arguments(parser)`, and `run(options)`, which gives receipts."""
