SUMMARY = "Image of a device that runs a node of Evenkeel"
DESCRIPTION = "A small system with the node as a service, reached by ssh, whose kernel lets the node set the speed of processors."

require evenkeel-image.inc
