SUMMARY = "Image of a board that computes together with others"
DESCRIPTION = "evenkeel-image with MPI: keel-mpi, MPICH with its launcher hydra, and ssh to start programs on other boards."

require recipes-evenkeel/images/evenkeel-image.inc

# Needs PACKAGECONFIG:append:pn-evenkeel = " mpi", or nothing provides evenkeel-mpi.
IMAGE_INSTALL += "evenkeel-mpi"
