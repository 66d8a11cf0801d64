SUMMARY = "Image of a board that computes together with others"
DESCRIPTION = "evenkeel-image with MPI: the programs of `keel cluster`, MPICH with its launcher hydra, and ssh to \
start them on other boards."

require recipes-evenkeel/images/evenkeel-image.bb

# Needs PACKAGECONFIG:append:pn-evenkeel = " mpi", or nothing provides evenkeel-mpi.
IMAGE_INSTALL += "evenkeel-mpi"
