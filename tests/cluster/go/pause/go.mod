module pdserve.io/tests/cluster/pause

go 1.26.0
