# Runs first in the sandbox's namespaces and holds them open. Arguments: address, file to make.
set -e
ip link set lo up
ip link add node0 type veth peer name node1
ip addr add "$1/24" dev node0
ip link set node0 up
ip link set node1 up
ip route add default dev node0
echo 1 >/proc/sys/net/ipv4/ip_forward
# containerd and CNI keep things at fixed places: these are theirs alone.
for place in /run/containerd /var/lib/cni; do
    mkdir -p $place
    mount -t tmpfs tmpfs $place
done
touch "$2"
exec sleep infinity
