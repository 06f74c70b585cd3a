"""The serving engine's brain: requests, KV accounting, plans and batching policies.

Pure standard library. Nothing here reads a clock, draws a random number, does I/O, or knows how many
tokens a request will generate.
"""
