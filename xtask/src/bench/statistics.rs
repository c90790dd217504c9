//! Medians, spreads, and whether two sets of figures differ by more than chance.

/// The median of figures; NaN if there are none.
pub(super) fn median(values: &[f64]) -> f64 {
    quantile(values, 0.5)
}

/// The given quantile, interpolated between neighbours (Hyndman and Fan, type 7).
pub(super) fn quantile(values: &[f64], share: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let Some(last) = sorted.len().checked_sub(1) else { return f64::NAN };
    let place = share.clamp(0.0, 1.0) * last as f64;
    let at = |index: usize| sorted.get(index.min(last)).copied().unwrap_or(f64::NAN);
    let low = at(place.floor() as usize);
    low + (at(place.ceil() as usize) - low) * place.fract()
}

/// Least and greatest.
pub(super) fn range(values: &[f64]) -> (f64, f64) {
    (quantile(values, 0.0), quantile(values, 1.0))
}

/// Percentile of sorted whole numbers, in thousandths; 0 if there are none.
pub(super) fn permille(sorted: &[u64], share: usize) -> u64 {
    let index = (sorted.len() * share).div_ceil(1000).max(1) - 1;
    sorted.get(index).copied().unwrap_or(0)
}

/// Two-sided p-value of the rank-sum test (Mann and Whitney 1947): how often chance alone orders the figures of two
/// equal sources as unevenly. Exact; counts equal orders, and ties share the mean of their ranks.
pub(super) fn rank_test(a: &[f64], b: &[f64]) -> f64 {
    let (n, m) = (a.len(), b.len());
    if n == 0 || m == 0 {
        return 1.0;
    }
    let mut all: Vec<f64> = a.iter().chain(b).copied().collect();
    all.sort_by(f64::total_cmp);
    // Twice the mean rank, so that it is a whole number.
    let double_rank = |value: f64| {
        let first = all.partition_point(|other| *other < value);
        let after = all.partition_point(|other| *other <= value);
        first + after + 1
    };
    let ranks: Vec<usize> = all.iter().map(|value| double_rank(*value)).collect();
    let observed: usize = a.iter().map(|value| double_rank(*value)).sum();
    // ways[k][s]: choices of k ranks with sum s. Floating point, because their number is unbounded.
    let most: usize = ranks.iter().sum();
    let mut ways = vec![vec![0.0f64; most + 1]; n + 1];
    if let Some(none) = ways.first_mut().and_then(|row| row.first_mut()) {
        *none = 1.0;
    }
    for rank in &ranks {
        for k in (1..=n).rev() {
            let (before, from) = ways.split_at_mut(k);
            let (Some(less), Some(row)) = (before.last(), from.first_mut()) else { continue };
            for (to, ways) in row.iter_mut().skip(*rank).zip(less) {
                *to += ways;
            }
        }
    }
    let Some(row) = ways.last() else { return 1.0 };
    let mean = n as f64 * most as f64 / (n + m) as f64;
    let distance = (observed as f64 - mean).abs() - 1e-9;
    let uneven: f64 =
        row.iter().enumerate().filter(|(s, _)| (*s as f64 - mean).abs() >= distance).map(|(_, w)| w).sum();
    uneven / row.iter().sum::<f64>()
}

/// 95 % interval of `median(b) / median(a)` by bootstrap (Efron 1979). The seed is fixed: the same figures give the
/// same interval.
pub(super) fn ratio_interval(a: &[f64], b: &[f64]) -> (f64, f64) {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut draw = |values: &[f64]| -> f64 {
        let drawn: Vec<f64> = values
            .iter()
            .map(|_| {
                // xorshift64 (Marsaglia 2003).
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                values.get((state % values.len() as u64) as usize).copied().unwrap_or(f64::NAN)
            })
            .collect();
        median(&drawn)
    };
    let ratios: Vec<f64> = (0..2000).map(|_| draw(b) / draw(a)).collect();
    (quantile(&ratios, 0.025), quantile(&ratios, 0.975))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(a: f64, b: f64) -> bool {
        (a - b).abs() < 1e-9
    }

    #[test]
    fn quantiles() {
        assert!(near(median(&[3.0, 1.0, 2.0]), 2.0) && near(median(&[4.0, 1.0, 2.0, 3.0]), 2.5));
        assert!(near(quantile(&[0.0, 10.0], 0.25), 2.5) && median(&[]).is_nan());
        assert_eq!(range(&[2.0, 9.0, 1.0]), (1.0, 9.0));
        let sorted: Vec<u64> = (1..=1000).collect();
        assert_eq!([500, 990, 999].map(|share| permille(&sorted, share)), [500, 990, 999]);
        assert_eq!((permille(&[7], 999), permille(&[], 500)), (7, 0));
    }

    #[test]
    fn the_rank_test_is_exact() {
        // Complete separation of 3 and 3: 2 of 20 orders are as uneven. (Tables of Mann and Whitney.)
        assert!(near(rank_test(&[1.0, 2.0, 3.0], &[4.0, 5.0, 6.0]), 0.1));
        // 7 and 7: 2 of 3432.
        let low: Vec<f64> = (0..7).map(f64::from).collect();
        let high: Vec<f64> = (10..17).map(f64::from).collect();
        assert!(near(rank_test(&low, &high), 2.0 / 3432.0));
        assert!(near(rank_test(&[1.0, 4.0], &[2.0, 3.0]), 1.0));
        assert!(near(rank_test(&[5.0, 5.0], &[5.0, 5.0, 5.0]), 1.0));
        assert!(near(rank_test(&[], &[1.0]), 1.0));
    }

    #[test]
    fn intervals_hold_the_ratio() {
        let a = [10.0, 11.0, 9.0, 10.5, 9.5];
        let b: Vec<f64> = a.iter().map(|value| value * 2.0).collect();
        let (low, high) = ratio_interval(&a, &b);
        assert!(low > 1.6 && low <= 2.0 && (2.0..2.4).contains(&high), "{low} {high}");
    }
}
