"""What can be seen of a run: records, the live view, the report and the trace."""
