"""Live execution: the schedulers of `simulator.engine` drive real models here."""
