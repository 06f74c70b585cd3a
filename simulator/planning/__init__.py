"""Which fleet a load needs, and which load a fleet bears: answers that were tested, with their doubts."""

from simulator.planning.answer import Capacity, Plan, as_json
from simulator.planning.planner import best_of, capacity

__all__ = ["Capacity", "Plan", "as_json", "best_of", "capacity"]
