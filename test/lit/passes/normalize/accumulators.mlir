// RUN: mlirstitch-opt %s --pass-pipeline='builtin.module(normalize-accumulators)' --split-input-file | FileCheck %s

#m = affine_map<(d0, d1) -> (d0, d1)>
#r = affine_map<(d0, d1) -> (d0)>
// The product rounds to f16 as the program says, the sum accumulates in f32, one truncation follows.
// CHECK-LABEL: func.func @sum_of_squares
// CHECK: linalg.fill ins(%{{.*}} : f32)
// CHECK: linalg.generic
// CHECK-SAME: ins(%arg0 : tensor<4x8xf16>) outs(%{{.*}} : tensor<4xf32>)
// CHECK: %[[P:.+]] = arith.mulf %{{.*}} : f16
// CHECK: %[[W:.+]] = arith.extf %[[P]] : f16 to f32
// CHECK: arith.addf %[[W]], %{{.*}} : f32
// CHECK: arith.truncf %{{.*}} : f32 to f16
func.func @sum_of_squares(%a: tensor<4x8xf16>) -> tensor<4xf16> {
  %z = arith.constant 0.0 : f16
  %e = tensor.empty() : tensor<4xf16>
  %f = linalg.fill ins(%z : f16) outs(%e : tensor<4xf16>) -> tensor<4xf16>
  %0 = linalg.generic {indexing_maps = [#m, #r], iterator_types = ["parallel", "reduction"]}
      ins(%a : tensor<4x8xf16>) outs(%f : tensor<4xf16>) {
  ^bb0(%x: f16, %o: f16):
    %p = arith.mulf %x, %x : f16
    %s = arith.addf %p, %o : f16
    linalg.yield %s : f16
  } -> tensor<4xf16>
  return %0 : tensor<4xf16>
}

// -----

// A contraction into a bias: the bias is widened, products and sums are f32.
// CHECK-LABEL: func.func @matmul
// CHECK: arith.extf %{{.*}} : bf16 to f32
// CHECK: linalg.matmul ins(%arg0, %arg1 : tensor<4x8xbf16>, tensor<8x4xbf16>) outs(%{{.*}} : tensor<4x4xf32>) -> tensor<4x4xf32>
// CHECK: arith.truncf %{{.*}} : f32 to bf16
func.func @matmul(%a: tensor<4x8xbf16>, %b: tensor<8x4xbf16>, %c: tensor<4x4xbf16>) -> tensor<4x4xbf16> {
  %0 = linalg.matmul ins(%a, %b : tensor<4x8xbf16>, tensor<8x4xbf16>) outs(%c : tensor<4x4xbf16>) -> tensor<4x4xbf16>
  return %0 : tensor<4x4xbf16>
}

// -----

// CHECK-LABEL: func.func @convolution
// CHECK: linalg.conv_2d_nchw_fchw
// CHECK-SAME: dilations = dense<2>
// CHECK-SAME: outs(%{{.*}} : tensor<1x3x4x4xf32>)
// CHECK: arith.truncf %{{.*}} : f32 to f16
func.func @convolution(%a: tensor<1x2x8x8xf16>, %b: tensor<3x2x3x3xf16>) -> tensor<1x3x4x4xf16> {
  %z = arith.constant 0.0 : f16
  %e = tensor.empty() : tensor<1x3x4x4xf16>
  %f = linalg.fill ins(%z : f16) outs(%e : tensor<1x3x4x4xf16>) -> tensor<1x3x4x4xf16>
  %0 = linalg.conv_2d_nchw_fchw {dilations = dense<2> : vector<2xi64>}
      ins(%a, %b : tensor<1x2x8x8xf16>, tensor<3x2x3x3xf16>) outs(%f : tensor<1x3x4x4xf16>) -> tensor<1x3x4x4xf16>
  return %0 : tensor<1x3x4x4xf16>
}

// -----

#m = affine_map<(d0, d1) -> (d0, d1)>
#r = affine_map<(d0, d1) -> (d0)>
// A maximum is exact in f16; an f32 sum is wide enough; both stay.
// CHECK-LABEL: func.func @exact
// CHECK-NOT: arith.extf
// CHECK-NOT: arith.truncf
func.func @exact(%a: tensor<4x8xf16>, %i: tensor<4xf16>, %b: tensor<4x8xf32>, %j: tensor<4xf32>)
    -> (tensor<4xf16>, tensor<4xf32>) {
  %0 = linalg.generic {indexing_maps = [#m, #r], iterator_types = ["parallel", "reduction"]}
      ins(%a : tensor<4x8xf16>) outs(%i : tensor<4xf16>) {
  ^bb0(%x: f16, %o: f16):
    %s = arith.maximumf %x, %o : f16
    linalg.yield %s : f16
  } -> tensor<4xf16>
  %1 = linalg.generic {indexing_maps = [#m, #r], iterator_types = ["parallel", "reduction"]}
      ins(%b : tensor<4x8xf32>) outs(%j : tensor<4xf32>) {
  ^bb0(%x: f32, %o: f32):
    %s = arith.addf %x, %o : f32
    linalg.yield %s : f32
  } -> tensor<4xf32>
  return %0, %1 : tensor<4xf16>, tensor<4xf32>
}

// -----

// A scan carries an f32 total, and every element is rounded once.
// CHECK-LABEL: func.func @scan
// CHECK: linalg.generic
// CHECK-SAME: ins(%arg0 : tensor<4x8xbf16>) outs(%{{.*}}, %{{.*}} : tensor<4x8xf32>, tensor<4xf32>)
// CHECK: %[[W:.+]] = arith.extf %{{.*}} : bf16 to f32
// CHECK: %[[T:.+]] = arith.addf %[[TOTAL:.+]], %[[W]] : f32
// CHECK: linalg.yield %[[TOTAL]], %[[T]] : f32, f32
// CHECK: arith.truncf %{{.*}} : f32 to bf16
func.func @scan(%a: tensor<4x8xbf16>) -> tensor<4x8xbf16> {
  %z = arith.constant 0.0 : bf16
  %e = tensor.empty() : tensor<4x8xbf16>
  %r = tensor.empty() : tensor<4xbf16>
  %f = linalg.fill ins(%z : bf16) outs(%r : tensor<4xbf16>) -> tensor<4xbf16>
  %0:2 = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0, d1)>,
                                          affine_map<(d0, d1) -> (d0)>], iterator_types = ["parallel", "reduction"]}
      ins(%a : tensor<4x8xbf16>) outs(%e, %f : tensor<4x8xbf16>, tensor<4xbf16>) {
  ^bb0(%x: bf16, %o: bf16, %total: bf16):
    %s = arith.addf %total, %x : bf16
    linalg.yield %total, %s : bf16, bf16
  } -> (tensor<4x8xbf16>, tensor<4xbf16>)
  return %0#0 : tensor<4x8xbf16>
}

// -----

// A scatter stays one: the update is widened before it is selected.
// CHECK-LABEL: func.func @scatter
// CHECK: arith.cmpi eq
// CHECK: %[[U:.+]] = arith.extf %{{.*}} : f16 to f32
// CHECK: %[[N:.+]] = arith.extf %{{.*}} : f16 to f32
// CHECK: %[[S:.+]] = arith.select %{{.*}}, %[[U]], %[[N]] : f32
// CHECK: arith.addf %{{.*}}, %[[S]] : f32
// CHECK: arith.truncf %{{.*}} : f32 to f16
func.func @scatter(%i: tensor<4xi64>, %a: tensor<4x8xf16>, %c: tensor<6x8xf16>) -> tensor<6x8xf16> {
  %z = arith.constant -0.0 : f16
  %0 = linalg.generic {indexing_maps = [affine_map<(d, c, n) -> (n)>, affine_map<(d, c, n) -> (n, c)>,
                                        affine_map<(d, c, n) -> (d, c)>],
                       iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%i, %a : tensor<4xi64>, tensor<4x8xf16>) outs(%c : tensor<6x8xf16>) {
  ^bb0(%named: i64, %x: f16, %o: f16):
    %d = linalg.index 0 : index
    %row = arith.index_cast %d : index to i64
    %hit = arith.cmpi eq, %named, %row : i64
    %t = arith.select %hit, %x, %z : f16
    %s = arith.addf %o, %t : f16
    linalg.yield %s : f16
  } -> tensor<6x8xf16>
  return %0 : tensor<6x8xf16>
}
