"""What can go wrong that the person running ServeTwin can put right.

UserError                 the message is the whole story: where, what is wrong, what would be right
├── ScenarioError         scenarios/chat.yaml:13: workload.arrivals.rate_per_s must be > 0, not -3
├── TraceError            azure.csv:17: GeneratedTokens must be a whole number >= 1, not 'x'
├── ModelError            config.json: 'mamba' layers hold no KV cache; ServeTwin knows attention decoders
├── ProfileError          profile h100.json: 'dense' has 3 knots but 4 times
├── Interrupted           what is done is kept in sweeps; go on with it by --resume; exit code 130 or 143
└── RequestRefused        what an engine does not take in; the request counts as rejected
    ├── RequestTooLarge   request needs 530 KV blocks, the cache has 512
    └── QueueFull         the queue holds max_queue_size (64) requests

Libraries raise these and never print or exit; the command line turns one into a single line and exit
code 2. Anything else that escapes is a bug of ours and keeps its traceback.
"""

from __future__ import annotations


class UserError(Exception):
    """Something the person running this can put right; ``str(error)`` is one complete line."""


class ScenarioError(UserError):
    """A scenario, an override or a combination of settings is wrong. May hold several lines."""


class TraceError(UserError):
    """A trace file is not what it was said to be; names the file and, where there is one, the line."""


class ModelError(UserError):
    """A model or hardware description is unknown, incomplete or cannot be priced."""


class ProfileError(UserError):
    """A cost profile is damaged or does not belong to this model, hardware or dtype."""


class Interrupted(UserError):
    """A command was stopped from outside; the message says what is kept and how to go on."""


class RequestRefused(UserError):
    """A request that the engine does not take in; rejected at arrival and counted."""


class QueueFull(RequestRefused):
    """A request that found as many others waiting as the policy allows."""


class RequestTooLarge(RequestRefused):
    """A request that could never run, however long it waited."""
