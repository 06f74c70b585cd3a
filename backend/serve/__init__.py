"""An OpenAI-compatible server over one engine, simulated on the wall clock or live."""
