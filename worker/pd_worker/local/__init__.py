"""`pdserve up`: router and workers as processes of this machine, started and stopped as one."""
