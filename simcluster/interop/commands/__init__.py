"""Commands that read or write traces of training steps."""
