//! Renders drawings as SVG and as PNG.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;

use embedded_graphics::draw_target::DrawTarget;
use embedded_graphics::geometry::{OriginDimensions, Point, Size};
use embedded_graphics::mono_font::{MonoTextStyle, iso_8859_1};
use embedded_graphics::pixelcolor::{Rgb888, RgbColor};
use embedded_graphics::text::{Alignment, Text};
use embedded_graphics::{Drawable, Pixel};
use flate2::write::ZlibEncoder;
use flate2::{Compression, Crc};

use super::chart::{Anchor, Color, SIZE, Shape};

/// Lengths of dashes and of the gaps between them.
const DASH: (f64, f64) = (7.0, 5.0);

/// Writes `name.svg` and `name.png` into `folder`.
///
/// # Errors
/// One line that names the file.
pub(crate) fn write(folder: &Path, name: &str, shapes: &[Shape]) -> Result<(), String> {
    let svg_path = folder.join(format!("{name}.svg"));
    std::fs::write(&svg_path, svg(shapes))
        .map_err(|error| format!("{}: {error}", svg_path.display()))?;
    let png_path = folder.join(format!("{name}.png"));
    std::fs::write(&png_path, png(shapes)?)
        .map_err(|error| format!("{}: {error}", png_path.display()))
}

fn svg(shapes: &[Shape]) -> String {
    let (width, height) = SIZE;
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
         font-family=\"sans-serif\">\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n"
    );
    for shape in shapes {
        // Writing to a string cannot fail.
        let _ = write_svg(&mut text, shape);
    }
    text + "</svg>\n"
}

fn write_svg(out: &mut String, shape: &Shape) -> std::fmt::Result {
    match shape {
        Shape::Line {
            points,
            color,
            width,
            dashed,
        } => {
            write!(
                out,
                "<polyline fill=\"none\" stroke=\"{}\" stroke-width=\"{width}\"",
                hex(*color)
            )?;
            if *dashed {
                write!(out, " stroke-dasharray=\"{} {}\"", DASH.0, DASH.1)?;
            }
            write!(out, " points=\"")?;
            for (x, y) in points {
                write!(out, "{x:.1},{y:.1} ")?;
            }
            writeln!(out, "\"/>")
        }
        Shape::Text {
            x,
            y,
            anchor,
            text,
            color,
            large,
        } => {
            let anchor = match anchor {
                Anchor::Start => "start",
                Anchor::Middle => "middle",
                Anchor::End => "end",
            };
            let size = if *large { 19 } else { 14 };
            let escaped = text
                .replace('&', "&amp;")
                .replace('<', "&lt;")
                .replace('>', "&gt;");
            writeln!(
                out,
                "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" font-size=\"{size}\" \
                 fill=\"{}\">{escaped}</text>",
                hex(*color)
            )
        }
    }
}

fn hex(color: Color) -> String {
    format!("#{:02x}{:02x}{:02x}", color.0, color.1, color.2)
}

/// Pixels, three bytes each, row by row.
struct Raster {
    width: usize,
    height: usize,
    bytes: Vec<u8>,
}

impl OriginDimensions for Raster {
    fn size(&self) -> Size {
        Size::new(self.width as u32, self.height as u32)
    }
}

impl DrawTarget for Raster {
    type Color = Rgb888;
    type Error = std::convert::Infallible;

    fn draw_iter<I>(&mut self, pixels: I) -> Result<(), Self::Error>
    where
        I: IntoIterator<Item = Pixel<Self::Color>>,
    {
        for Pixel(point, color) in pixels {
            self.blend(
                point.x,
                point.y,
                Color(color.r(), color.g(), color.b()),
                1.0,
            );
        }
        Ok(())
    }
}

impl Raster {
    fn white() -> Self {
        let (width, height) = (SIZE.0 as usize, SIZE.1 as usize);
        Self {
            width,
            height,
            bytes: vec![255; width * height * 3],
        }
    }

    /// Blends a colour into a share of a pixel; does nothing outside the picture.
    fn blend(&mut self, x: i32, y: i32, color: Color, share: f64) {
        let (Ok(x), Ok(y)) = (usize::try_from(x), usize::try_from(y)) else {
            return;
        };
        if x >= self.width || y >= self.height {
            return;
        }
        let at = (y * self.width + x) * 3;
        for (byte, part) in self.bytes[at..at + 3]
            .iter_mut()
            .zip([color.0, color.1, color.2])
        {
            let mixed = f64::from(*byte) * (1.0 - share) + f64::from(part) * share;
            *byte = mixed.round() as u8;
        }
    }

    /// Draws one line through points: each pixel is covered by the part that lies within the line's width.
    fn line(&mut self, points: &[(f64, f64)], color: Color, width: f64) {
        // Collect all segments first: where two of them meet, pixels must not be drawn twice.
        let mut cover = std::collections::HashMap::new();
        for pair in points.windows(2) {
            let reach = width / 2.0 + 1.0;
            let least = |one: f64, other: f64| (one.min(other) - reach).floor() as i32;
            let most = |one: f64, other: f64| (one.max(other) + reach).ceil() as i32;
            let ((x1, y1), (x2, y2)) = (pair[0], pair[1]);
            for y in least(y1, y2)..=most(y1, y2) {
                for x in least(x1, x2)..=most(x1, x2) {
                    let center = (f64::from(x) + 0.5, f64::from(y) + 0.5);
                    let share =
                        (width / 2.0 + 0.5 - distance(center, pair[0], pair[1])).clamp(0.0, 1.0);
                    let covered = cover.entry((x, y)).or_insert(0.0_f64);
                    *covered = covered.max(share);
                }
            }
        }
        for ((x, y), share) in cover {
            self.blend(x, y, color, share);
        }
    }

    fn text(&mut self, x: f64, y: f64, anchor: Anchor, text: &str, color: Color, large: bool) {
        let font = if large {
            &iso_8859_1::FONT_10X20
        } else {
            &iso_8859_1::FONT_7X14
        };
        let style = MonoTextStyle::new(font, Rgb888::new(color.0, color.1, color.2));
        let alignment = match anchor {
            Anchor::Start => Alignment::Left,
            Anchor::Middle => Alignment::Center,
            Anchor::End => Alignment::Right,
        };
        let at = Point::new(x.round() as i32, y.round() as i32);
        // Drawing into memory cannot fail.
        let _ = Text::with_alignment(text, at, style, alignment).draw(self);
    }
}

/// Returns the distance of a point to the nearest point of a segment.
fn distance(point: (f64, f64), from: (f64, f64), to: (f64, f64)) -> f64 {
    let (along_x, along_y) = (to.0 - from.0, to.1 - from.1);
    let (of_x, of_y) = (point.0 - from.0, point.1 - from.1);
    let length_squared = along_x * along_x + along_y * along_y;
    let share = if length_squared == 0.0 {
        0.0
    } else {
        ((of_x * along_x + of_y * along_y) / length_squared).clamp(0.0, 1.0)
    };
    (of_x - share * along_x).hypot(of_y - share * along_y)
}

/// Returns the dashes of a line through points.
fn dashes(points: &[(f64, f64)]) -> Vec<Vec<(f64, f64)>> {
    let mut dashes = Vec::new();
    let mut current: Vec<(f64, f64)> = points.first().copied().into_iter().collect();
    let (mut is_dash, mut left) = (true, DASH.0);
    for pair in points.windows(2) {
        let (mut from, to) = (pair[0], pair[1]);
        loop {
            let length = (to.0 - from.0).hypot(to.1 - from.1);
            if length <= left {
                left -= length;
                if is_dash {
                    current.push(to);
                }
                break;
            }
            let share = left / length;
            from = (
                from.0 + (to.0 - from.0) * share,
                from.1 + (to.1 - from.1) * share,
            );
            if is_dash {
                current.push(from);
                dashes.push(std::mem::take(&mut current));
                left = DASH.1;
            } else {
                current = vec![from];
                left = DASH.0;
            }
            is_dash = !is_dash;
        }
    }
    if is_dash && current.len() > 1 {
        dashes.push(current);
    }
    dashes
}

fn png(shapes: &[Shape]) -> Result<Vec<u8>, String> {
    let mut raster = Raster::white();
    for shape in shapes {
        match shape {
            Shape::Line {
                points,
                color,
                width,
                dashed: false,
            } => raster.line(points, *color, *width),
            Shape::Line {
                points,
                color,
                width,
                dashed: true,
            } => {
                for dash in dashes(points) {
                    raster.line(&dash, *color, *width);
                }
            }
            Shape::Text {
                x,
                y,
                anchor,
                text,
                color,
                large,
            } => raster.text(*x, *y, *anchor, text, *color, *large),
        }
    }
    encode(&raster).map_err(|error| format!("png: {error}"))
}

/// Encodes the picture as a PNG file: eight bits for each colour, rows unfiltered, because lines and letters compress
/// well this way.
fn encode(raster: &Raster) -> std::io::Result<Vec<u8>> {
    let mut rows = ZlibEncoder::new(Vec::new(), Compression::best());
    for row in raster.bytes.chunks_exact(raster.width * 3) {
        rows.write_all(&[0])?;
        rows.write_all(row)?;
    }
    let mut header = Vec::new();
    header.extend((raster.width as u32).to_be_bytes());
    header.extend((raster.height as u32).to_be_bytes());
    // Bits of a colour, kind of picture (red, green, blue), and the standard compression, filter and interlace.
    header.extend([8, 2, 0, 0, 0]);
    let mut file = b"\x89PNG\r\n\x1a\n".to_vec();
    for (kind, content) in [
        (b"IHDR", header),
        (b"IDAT", rows.finish()?),
        (b"IEND", Vec::new()),
    ] {
        file.extend((content.len() as u32).to_be_bytes());
        let mut checksum = Crc::new();
        checksum.update(kind);
        checksum.update(&content);
        file.extend(kind);
        file.extend(content);
        file.extend(checksum.sum().to_be_bytes());
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    const RED: Color = Color(255, 0, 0);

    fn shapes() -> Vec<Shape> {
        vec![
            Shape::Line {
                points: vec![(10.0, 20.5), (110.0, 20.5)],
                color: RED,
                width: 1.0,
                dashed: false,
            },
            Shape::Text {
                x: 10.0,
                y: 60.0,
                anchor: Anchor::Start,
                text: "p50 < 1 µs".to_owned(),
                color: RED,
                large: false,
            },
        ]
    }

    #[test]
    fn svg_is_closed_and_escaped() {
        let text = svg(&shapes());
        assert!(text.starts_with("<svg ") && text.ends_with("</svg>\n"));
        assert!(text.contains("points=\"10.0,20.5 110.0,20.5 \""));
        assert!(text.contains("p50 &lt; 1 µs"));
    }

    #[test]
    fn png_has_the_line_where_it_belongs_and_nothing_beside_it() {
        let bytes = png(&shapes()).unwrap();
        let (width, height) = (SIZE.0 as usize, SIZE.1 as usize);
        // After the signature and the header chunk: length, kind, content.
        let content = &bytes[8 + 25..];
        assert_eq!(&content[4..8], b"IDAT");
        let mut pixels = Vec::new();
        flate2::read::ZlibDecoder::new(&content[8..])
            .read_to_end(&mut pixels)
            .unwrap();
        assert_eq!(pixels.len(), (width * 3 + 1) * height);
        let pixel = |x: usize, y: usize| {
            let at = y * (width * 3 + 1) + 1 + x * 3;
            [pixels[at], pixels[at + 1], pixels[at + 2]]
        };
        assert_eq!(pixel(60, 20), [255, 0, 0]);
        assert_eq!(pixel(60, 22), [255, 255, 255]);
        assert_eq!(pixel(200, 20), [255, 255, 255]);
        let in_text = |y| (10..90).any(|x| pixel(x, y) == [255, 0, 0]);
        assert!((48..62).any(in_text) && !in_text(75));
    }

    #[test]
    fn dashes_and_gaps_alternate_along_corners() {
        let points = [(0.0, 0.0), (10.0, 0.0), (10.0, 15.0)];
        let dashes = dashes(&points);
        assert_eq!(dashes[0], [(0.0, 0.0), (7.0, 0.0)]);
        // The gap goes around the corner.
        assert_eq!(dashes[1], [(10.0, 2.0), (10.0, 9.0)]);
        assert_eq!(dashes[2], [(10.0, 14.0), (10.0, 15.0)]);
    }
}
