"""`kubectl pdd`: what a person asks about PDDeployments. Reads and writes through kubectl alone, so
that contexts, credentials and namespaces are the ones that they are used to."""
