"""Results of load tools against real servers, as figures and tables to hold a simulation against."""
