#!/bin/busybox sh
# The guest's first program: this machine's root, below a layer in memory, becomes the guest's.
fail() {
	echo "init: $*"
	exec /bin/busybox poweroff -f
}
/bin/busybox mount -t proc proc /proc || fail "no /proc"
/bin/busybox mount -t sysfs sysfs /sys || fail "no /sys"
/bin/busybox mount -t devtmpfs devtmpfs /dev || fail "no /dev"
for name in virtio virtio_ring virtio_pci_legacy_dev virtio_pci_modern_dev virtio_pci virtio_console \
	fuse virtiofs overlay; do
	[ ! -f /modules/$name.ko ] || /bin/busybox insmod /modules/$name.ko || fail "$name can't be loaded"
done
/bin/busybox mount -t virtiofs -o ro host /host || fail "the host's files can't be mounted"
/bin/busybox mount -t tmpfs -o mode=755 layer /layer || fail "no memory for a layer"
/bin/busybox mkdir /layer/upper /layer/work
/bin/busybox mount -t overlay -o lowerdir=/host,upperdir=/layer/upper,workdir=/layer/work root /new ||
	fail "the layer can't be mounted"
for dir in proc sys dev; do
	/bin/busybox mkdir -p /new/$dir
	/bin/busybox mount --move /$dir /new/$dir || fail "/$dir can't be moved"
done
/bin/busybox mkdir -p /new/run /new/dev/pts /new/dev/shm /new/tmp
/bin/busybox mount -t tmpfs -o mode=755 run /new/run
/bin/busybox mount -t tmpfs -o mode=1777 shm /new/dev/shm
/bin/busybox mount -t devpts devpts /new/dev/pts
/bin/busybox mkdir /new/run/modules
/bin/busybox cp /modules/* /new/run/modules/
/bin/busybox ip link set lo up
if [ -n "@NET@" ]; then
	for name in failover net_failover virtio_net; do
		[ ! -f /modules/$name.ko ] || /bin/busybox insmod /modules/$name.ko || fail "no network"
	done
	/bin/busybox ip addr add "@NET@"/24 dev eth0 || fail "no network"
	/bin/busybox ip link set eth0 up
fi
/bin/busybox hostname "guest"
echo "4 4 1 7" >/new/proc/sys/kernel/printk
set --
for name in ib_core ib_uverbs efa; do
	[ ! -f /new/run/modules/$name.ko ] || set -- "$@" /run/modules/$name.ko
done
exec /bin/busybox switch_root /new @AGENT@ vm-agent "$@"
