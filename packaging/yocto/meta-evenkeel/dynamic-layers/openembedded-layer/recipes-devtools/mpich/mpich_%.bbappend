# A layer that is merely added changes nothing: what follows needs the distribution's consent.
require ${@bb.utils.contains('DISTRO_FEATURES', 'evenkeel', 'evenkeel-mpich.inc', '', d)}
