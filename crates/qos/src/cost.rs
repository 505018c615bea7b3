//! Device time of a request, learned: `fixed + per_byte * bytes` nanoseconds.
//!
//! A sample is the bytes of a completed request and its part of the time in which the device was
//! busy. Samples are fitted by least squares, older ones with less weight. A sample counts at most
//! `OUTLIER_FACTOR` times the present estimate and at least that part of it: one request of ten
//! seconds does not make the next ones dear, and a device that has changed is followed within some
//! hundred requests. Where sizes do not differ, both coefficients are scaled alike.
//!
//! Invariant: an estimate is at least `FIXED_NANOS_MIN`, whatever the samples, so that no request is
//! free and a flood of empty requests has its price.

/// Least fixed time of a request.
pub const FIXED_NANOS_MIN: f64 = 100.0;
/// Most fixed time: a seek of a slow disk is ten times shorter.
pub const FIXED_NANOS_MAX: f64 = 100_000_000.0;
/// Least time per byte: 1 TB/s.
pub const BYTE_NANOS_MIN: f64 = 0.001;
/// Most time per byte: 1 MB/s.
pub const BYTE_NANOS_MAX: f64 = 1_000.0;
/// A sample counts at most so many times the estimate.
const OUTLIER_FACTOR: f64 = 8.0;
/// Part of the weight of older samples that each new one leaves: some 500 samples count.
const DECAY: f64 = 1.0 - 1.0 / 512.0;
/// Samples before the first fit.
const SAMPLES_MIN: f64 = 16.0;
/// Least part of the squared sizes that must be spread, or the fit is of one size.
const SPREAD_MIN: f64 = 0.001;

/// Learned device time of the requests of one kind.
#[derive(Clone, Copy, Debug)]
pub struct CostModel {
    fixed_nanos: f64,
    byte_nanos: f64,
    count: f64,
    bytes: f64,
    bytes_squared: f64,
    nanos: f64,
    bytes_nanos: f64,
}

impl CostModel {
    /// A first guess, in nanoseconds per request and per byte; numbers out of bounds are bounded.
    #[must_use]
    pub const fn new(fixed_nanos: f64, byte_nanos: f64) -> CostModel {
        CostModel {
            fixed_nanos: bounded(fixed_nanos, FIXED_NANOS_MIN, FIXED_NANOS_MAX),
            byte_nanos: bounded(byte_nanos, BYTE_NANOS_MIN, BYTE_NANOS_MAX),
            count: 0.0,
            bytes: 0.0,
            bytes_squared: 0.0,
            nanos: 0.0,
            bytes_nanos: 0.0,
        }
    }

    /// Device time of a request, in nanoseconds.
    #[must_use]
    pub fn estimate(&self, bytes: u64) -> u64 {
        // A cast from a float saturates.
        self.predict(bytes as f64) as u64
    }

    /// Fixed part and part per byte, in nanoseconds.
    #[must_use]
    pub const fn coefficients(&self) -> (f64, f64) {
        (self.fixed_nanos, self.byte_nanos)
    }

    fn predict(&self, bytes: f64) -> f64 {
        self.fixed_nanos + self.byte_nanos * bytes
    }

    /// A request of so many bytes kept the device busy for so long.
    pub fn observe(&mut self, bytes: u64, nanos: u64) {
        let bytes = bytes as f64;
        let predicted = self.predict(bytes);
        let nanos = (nanos as f64).clamp(predicted / OUTLIER_FACTOR, predicted * OUTLIER_FACTOR);
        self.count = self.count * DECAY + 1.0;
        self.bytes = self.bytes * DECAY + bytes;
        self.bytes_squared = self.bytes_squared * DECAY + bytes * bytes;
        self.nanos = self.nanos * DECAY + nanos;
        self.bytes_nanos = self.bytes_nanos * DECAY + bytes * nanos;
        if self.count >= SAMPLES_MIN {
            self.fit();
        }
    }

    fn fit(&mut self) {
        let spread = self.count * self.bytes_squared - self.bytes * self.bytes;
        if spread > SPREAD_MIN * self.count * self.bytes_squared {
            let slope = (self.count * self.bytes_nanos - self.bytes * self.nanos) / spread;
            let slope = bounded(slope, BYTE_NANOS_MIN, BYTE_NANOS_MAX);
            let fixed = (self.nanos - slope * self.bytes) / self.count;
            self.fixed_nanos = bounded(fixed, FIXED_NANOS_MIN, FIXED_NANOS_MAX);
            // With the bounded fixed part, the best slope is another one.
            let slope = (self.bytes_nanos - self.fixed_nanos * self.bytes) / self.bytes_squared;
            self.byte_nanos = bounded(slope, BYTE_NANOS_MIN, BYTE_NANOS_MAX);
        } else {
            let expected = self.fixed_nanos * self.count + self.byte_nanos * self.bytes;
            let factor = self.nanos / expected;
            self.fixed_nanos = bounded(self.fixed_nanos * factor, FIXED_NANOS_MIN, FIXED_NANOS_MAX);
            self.byte_nanos = bounded(self.byte_nanos * factor, BYTE_NANOS_MIN, BYTE_NANOS_MAX);
        }
    }
}

/// The number within its bounds; the lower one for no number.
const fn bounded(number: f64, least: f64, most: f64) -> f64 {
    if number >= most {
        most
    } else if number >= least {
        number
    } else {
        least
    }
}
