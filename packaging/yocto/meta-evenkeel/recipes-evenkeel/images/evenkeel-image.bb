SUMMARY = "Image of a device that runs a node of Evenkeel"
DESCRIPTION = "A small system with the node as a service, reached by ssh, and with a kernel whose processors' speed \
the node can set."
LICENSE = "MIT"

inherit core-image features_check

# `evenkeel` chooses the options of the kernel, `systemd` is what starts the node.
REQUIRED_DISTRO_FEATURES = "evenkeel systemd"

IMAGE_FEATURES += "ssh-server-openssh"
IMAGE_INSTALL = " \
    packagegroup-core-boot \
    packagegroup-base-extended \
    evenkeel \
    ${CORE_IMAGE_EXTRA_INSTALL} \
"

# The node makes its store at the first start, 256 MiB unless its configuration says otherwise, and checkpoints and
# logs need some room beside it. In KiB.
IMAGE_ROOTFS_EXTRA_SPACE:append = " + 524288"
