//! How many readings of which object are shed to reach a total. Readings that cost no freshness are shed first. Then
//! each object loses a part such that the product of weight, period and part is the same.

/// Most steps of the search for the parts. Each passes at least one object that has reached its maximum; a few do.
const SEARCH_STEPS: u32 = 60;

/// Returns the part of an object's readings without which it is as fresh as with all of them. `valid` is the number of
/// readings that arrive while one value is valid: if it is 3, every third reading is enough.
pub(super) fn free_of(valid: f64) -> f64 {
    match valid.floor() {
        each if each >= 2.0 => 1.0 - 1.0 / each,
        _ => 0.0,
    }
}

/// Returns the part of its readings without which it has the part `min` of the freshness that it has with all of them.
///
/// One of m readings is admitted, evenly spread, and v (`valid`) is the validity in periods. Admitted readings are ⌊m⌋
/// and ⌈m⌉ periods apart in turn, m in the mean. The object is fresh for min(v, ⌊m⌋) and min(v, ⌈m⌉) periods of these.
/// So it is fresh for v/m of the time where v is below both, and always where v is above both.
pub(super) fn most_of(valid: f64, min: f64) -> f64 {
    if min <= 0.0 {
        return 1.0;
    }
    let whole = valid.floor();
    let rest = valid - whole;
    let wanted = min * valid.min(1.0);
    // Between the last m with which it is always fresh and the next whole one.
    let between = whole * (1.0 - rest) / (wanted - rest);
    let mean = if whole >= 1.0 && wanted > rest && between <= whole + 1.0 {
        between
    } else {
        valid / wanted
    };
    match mean.is_finite() && mean > 1.0 {
        true => 1.0 - 1.0 / mean,
        false => 0.0,
    }
}

/// One object, as it was measured.
#[derive(Clone, Copy, Debug)]
pub(super) struct Measured {
    pub(super) weight: f64,
    /// Readings taken up to the last measurement.
    pub(super) seen: u64,
    /// It could not be shed at the last measurement, so its count then is unknown.
    pub(super) is_new: bool,
    /// Readings since then, earlier ones decayed: proportional to the rate.
    pub(super) count: f64,
    /// The part of them that costs no freshness, and the largest part that may be shed.
    pub(super) free: f64,
    pub(super) most: f64,
}

/// How much is shed of each object.
pub(super) struct Plan {
    /// The part that is shed of the readings that cost no freshness.
    free: f64,
    /// The product of weight, period and part for the readings that cost freshness.
    level: f64,
}

impl Plan {
    /// Plans to shed `wanted` readings of all.
    pub(super) fn new(objects: &[Measured], wanted: f64) -> Self {
        let free: f64 = objects.iter().map(|it| it.free * it.count).sum();
        if wanted <= free {
            let free = if free > 0.0 { wanted / free } else { 0.0 };
            return Self { free, level: 0.0 };
        }
        Self {
            free: 1.0,
            level: level(objects, wanted - free),
        }
    }

    /// Returns the part of an object's readings that is shed.
    pub(super) fn part(&self, it: &Measured) -> f64 {
        let costly = (self.level * it.count / it.weight).min(it.most - it.free);
        self.free * it.free + costly.max(0.0)
    }
}

/// Returns the level at which `wanted` readings of all objects are shed: the product of weight, period and part. No
/// object sheds more than `most` allows beyond its readings that cost nothing. The number of shed readings is a
/// piecewise linear function of the level, and its slope only falls. So steps along the tangent approach the level from
/// below and arrive on its piece.
fn level(objects: &[Measured], wanted: f64) -> f64 {
    let mut level = 0.0;
    for _ in 0..SEARCH_STEPS {
        let (mut full, mut slope) = (0.0, 0.0);
        for it in objects {
            let most = (it.most - it.free).max(0.0);
            if level * it.count >= most * it.weight {
                full += most * it.count;
            } else {
                slope += it.count * it.count / it.weight;
            }
        }
        let next = (wanted - full) / slope;
        // This form also ends the search where all are at their maximum and the slope is 0.
        let is_nearer = next.is_finite() && next > level * (1.0 + 1e-12);
        if !is_nearer {
            break;
        }
        level = next;
    }
    level
}
