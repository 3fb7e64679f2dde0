"""Starts and watches the processes of a run, and finds a process's place in one."""
