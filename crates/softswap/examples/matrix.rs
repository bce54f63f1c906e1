//! Multiplies matrices larger than DRAM, block by block: `matrix [SIDE] [MEMORY]`.

use softswap::{Pool, Region};

/// Rows and columns of a block, which is contiguous: 128 KiB.
const BLOCK: usize = 128;
const BLOCK_BYTES: usize = BLOCK * BLOCK * 8;

struct Matrix {
    blocks: Region,
    side: usize,
}

impl Matrix {
    fn new(pool: &Pool, side: usize) -> softswap::Result<Matrix> {
        Ok(Matrix { blocks: pool.map(side * side * BLOCK_BYTES)?, side })
    }

    fn block(&self, row: usize, column: usize) -> Vec<f64> {
        let start = (row * self.side + column) * BLOCK_BYTES;
        let words = self.blocks[start..start + BLOCK_BYTES].as_chunks().0;
        words.iter().map(|word| f64::from_ne_bytes(*word)).collect()
    }

    fn set_block(&mut self, row: usize, column: usize, block: &[f64]) {
        let start = (row * self.side + column) * BLOCK_BYTES;
        let words = self.blocks[start..start + BLOCK_BYTES].as_chunks_mut().0;
        words.iter_mut().zip(block).for_each(|(word, value)| *word = value.to_ne_bytes());
    }
}

fn add_product(sum: &mut [f64], left: &[f64], right: &[f64]) {
    for row in 0..BLOCK {
        for inner in 0..BLOCK {
            let factor = left[row * BLOCK + inner];
            let right = &right[inner * BLOCK..][..BLOCK];
            let sum = &mut sum[row * BLOCK..][..BLOCK];
            sum.iter_mut().zip(right).for_each(|(sum, value)| *sum += factor * value);
        }
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let side: usize = arguments.next().map_or(Ok(8), |text| text.parse())?;
    let memory = arguments.next().unwrap_or("16M".into());
    let pool = Pool::builder().memory(&memory)?.swap("/var/tmp")?.build()?;
    let mut left = Matrix::new(&pool, side)?;
    let mut right = Matrix::new(&pool, side)?;
    let mut product = Matrix::new(&pool, side)?;
    let last = side * BLOCK - 1;
    for row in 0..side {
        for column in 0..side {
            let cells = (0..BLOCK * BLOCK)
                .map(|cell| (row * BLOCK + cell / BLOCK, column * BLOCK + cell % BLOCK));
            // Twice the identity, mirrored; and a matrix with distinct values.
            let mirror =
                cells.clone().map(|(row, column)| f64::from(u8::from(row + column == last)) * 2.0);
            left.set_block(row, column, &mirror.collect::<Vec<_>>());
            right.set_block(
                row,
                column,
                &cells.map(|(row, column)| (row * 7 + column) as f64).collect::<Vec<_>>(),
            );
        }
    }
    for row in 0..side {
        for column in 0..side {
            let mut sum = vec![0.0; BLOCK * BLOCK];
            for inner in 0..side {
                add_product(&mut sum, &left.block(row, inner), &right.block(inner, column));
            }
            product.set_block(row, column, &sum);
        }
    }
    for row in 0..side {
        for column in 0..side {
            for (cell, value) in product.block(row, column).into_iter().enumerate() {
                let (row, column) = (row * BLOCK + cell / BLOCK, column * BLOCK + cell % BLOCK);
                assert_eq!(value, 2.0 * ((last - row) * 7 + column) as f64, "{row}, {column}");
            }
        }
    }
    println!("{0} by {0}: the product is right; {1}", last + 1, pool.snapshot_stats_json());
    Ok(())
}
