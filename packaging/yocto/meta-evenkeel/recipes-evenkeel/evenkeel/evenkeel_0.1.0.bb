SUMMARY = "Node of Evenkeel: sensor readings to flash and to programs, in time"
DESCRIPTION = "Takes readings from sensors, keeps them on flash across power cuts, and shows them to programs that have to act on them in time."
SECTION = "console/utils"
LICENSE = "Apache-2.0 | MIT"
LIC_FILES_CHKSUM = "\
    file://LICENSE-APACHE;md5=3b83ef96387f14655fc854ddc3c6bd57 \
    file://LICENSE-MIT;md5=575d5d106e2cb56b3e54a53d87cfcf19 \
"

require ${BPN}-crates.inc

inherit cargo externalsrc pkgconfig systemd useradd

# Built is the tree that this layer lies in, so that recipe, crates and source are always of one commit. A layer that
# was copied elsewhere says where the tree is: EXTERNALSRC:pn-evenkeel = "/path/to/evenkeel".
EXTERNALSRC ?= "${@os.path.realpath('${THISDIR}/../../../../..')}"
EXTERNALSRC_BUILD = "${WORKDIR}/build"
# The class would put links into the tree.
# nooelint: oelint.vars.mispell.unknown - the class externalsrc reads it
EXTERNALSRC_SYMLINKS = ""

# MPI is for boards that compute together. MPICH is in meta-oe; clang is in oe-core from 5.3 on, before in meta-clang.
PACKAGECONFIG ??= ""
PACKAGECONFIG[mpi] = "--package keel-mpi --features keel-mpi/mpi,,mpich clang-native"

# Not the whole workspace, which has measurements beside other databases in it, and tests.
CARGO_BUILD_FLAGS:append = " --package keel --package mem-preload --package libkeel-c"

# The tree is not below the build's folders, whose names the compiler is told to leave out.
RUSTFLAGS:append = " --remap-path-prefix=${S}=${TARGET_DBGSRC_DIR}"

# Bindings to MPI are made while building. By its own means the crate would find the `mpicc` of the building machine.
export MPI_PKG_CONFIG = "mpich"
export LIBCLANG_PATH = "${STAGING_LIBDIR_NATIVE}"
export BINDGEN_EXTRA_CLANG_ARGS = "--sysroot=${STAGING_DIR_TARGET}"

do_install() {
    built=${B}/target/${CARGO_TARGET_SUBDIR}
    install -D -m 0755 $built/keel ${D}${bindir}/keel
    # Where keel looks for it: ../lib/keel, also if the system names its folder of libraries differently.
    install -D -m 0755 $built/libkeelmem.so ${D}${nonarch_libdir}/keel/libkeelmem.so
    install -D -m 0755 $built/libkeel.so ${D}${libdir}/libkeel.so
    install -D -m 0644 ${S}/crates/libkeel-c/include/keel.h ${D}${includedir}/keel.h
    install -D -m 0644 ${S}/packaging/systemd/keel.service ${D}${systemd_system_unitdir}/keel.service
    install -D -m 0644 ${S}/packaging/systemd/keel.toml ${D}${sysconfdir}/keel/keel.toml
    if ${@bb.utils.contains('PACKAGECONFIG', 'mpi', 'true', 'false', d)}; then
        install -D -m 0755 $built/keel-mpi ${D}${bindir}/keel-mpi
    fi
}

SYSTEMD_SERVICE:${PN} = "keel.service"
USERADD_PACKAGES = "${PN}"
USERADD_PARAM:${PN} = "--system --user-group --no-create-home --home-dir ${localstatedir}/lib/keel --shell ${base_bindir}/false keel"

PACKAGE_BEFORE_PN = "libkeel ${@bb.utils.contains('PACKAGECONFIG', 'mpi', '${PN}-mpi', '', d)}"
# Its name has no version, so it is no link of the -dev package: programs need this very file.
FILES_SOLIBSDEV = ""
FILES:libkeel += "${libdir}/libkeel.so"
FILES:${PN} += "${nonarch_libdir}/keel/libkeelmem.so"
FILES:${PN}-mpi += "${bindir}/keel-mpi"
CONFFILES:${PN} = "${sysconfdir}/keel/keel.toml"

# The launcher of MPICH reaches other boards by ssh.
RDEPENDS:${PN}-mpi = "${PN} mpich openssh-ssh"

# nooelint: oelint.vars.insaneskip - lib/keel is meant, also where the system has its libraries in lib64
INSANE_SKIP:${PN} += "libdir"
