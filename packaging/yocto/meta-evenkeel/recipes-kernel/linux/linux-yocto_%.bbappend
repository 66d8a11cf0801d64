# A layer that is merely added changes nothing: what follows needs the distribution's consent.
require ${@bb.utils.contains('DISTRO_FEATURES', 'evenkeel', 'evenkeel-linux.inc', '', d)}
