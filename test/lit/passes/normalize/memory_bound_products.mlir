// RUN: mlirstitch-opt %s --pass-pipeline='builtin.module(stitch-set-module-attributes,normalize-memory-bound-products)' | FileCheck %s
// RUN: mlirstitch-opt %s --pass-pipeline='builtin.module(stitch-set-module-attributes{numerics=strict},normalize-memory-bound-products)' | FileCheck %s --check-prefix=STRICT

// CHECK-DAG: #[[ID:.+]] = affine_map<(d0, d1) -> (d0, d1)>
// CHECK-DAG: #[[FIRST:.+]] = affine_map<(d0, d1) -> (d0)>
// CHECK-DAG: #[[SECOND:.+]] = affine_map<(d0, d1) -> (d1)>
// CHECK-DAG: #[[TURNED:.+]] = affine_map<(d0, d1) -> (d1, d0)>
// CHECK-DAG: #[[ONE:.+]] = affine_map<(d0) -> (d0)>
// CHECK-DAG: #[[NONE:.+]] = affine_map<(d0) -> ()>
// CHECK-DAG: #[[LEFT:.+]] = affine_map<(d0, d1, d2) -> (d0, d2)>
// CHECK-DAG: #[[RIGHT:.+]] = affine_map<(d0, d1, d2) -> (d2, d1)>
// CHECK-DAG: #[[OUT:.+]] = affine_map<(d0, d1, d2) -> (d0, d1)>
// CHECK-DAG: #[[COLUMN:.+]] = affine_map<(d0, d1) -> (d0, 0)>
// CHECK-DAG: #[[LINE:.+]] = affine_map<(d0, d1) -> (0, d1)>
module {
  // The sum of products in one op; strict numerics rounds twice.
  // CHECK-LABEL: func.func @matvec(
  // CHECK: linalg.generic {indexing_maps = [#[[ID]], #[[SECOND]], #[[FIRST]]], iterator_types = ["parallel", "reduction"]}
  // CHECK: ^bb0(%[[A:.+]]: f32, %[[X:.+]]: f32, %[[ACC:.+]]: f32):
  // CHECK-NEXT: %[[SUM:.+]] = math.fma %[[A]], %[[X]], %[[ACC]] : f32
  // CHECK-NEXT: linalg.yield %[[SUM]]
  // STRICT-LABEL: func.func @matvec(
  // STRICT: %[[P:.+]] = arith.mulf
  // STRICT-NEXT: arith.addf %{{.*}}, %[[P]]
  // STRICT-NOT: math.fma
  func.func @matvec(%a: tensor<4x8xf32>, %x: tensor<8xf32>, %i: tensor<4xf32>) -> tensor<4xf32> {
    %y = linalg.matvec ins(%a, %x : tensor<4x8xf32>, tensor<8xf32>) outs(%i : tensor<4xf32>) -> tensor<4xf32>
    return %y : tensor<4xf32>
  }

  // CHECK-LABEL: func.func @vecmat(
  // CHECK: linalg.generic {indexing_maps = [#[[SECOND]], #[[TURNED]], #[[FIRST]]], iterator_types = ["parallel", "reduction"]}
  func.func @vecmat(%x: tensor<8xf32>, %a: tensor<8x4xf32>, %i: tensor<4xf32>) -> tensor<4xf32> {
    %y = linalg.vecmat ins(%x, %a : tensor<8xf32>, tensor<8x4xf32>) outs(%i : tensor<4xf32>) -> tensor<4xf32>
    return %y : tensor<4xf32>
  }

  // CHECK-LABEL: func.func @dot(
  // CHECK: linalg.generic {indexing_maps = [#[[ONE]], #[[ONE]], #[[NONE]]], iterator_types = ["reduction"]}
  func.func @dot(%x: tensor<8xf32>, %y: tensor<8xf32>, %i: tensor<f32>) -> tensor<f32> {
    %z = linalg.dot ins(%x, %y : tensor<8xf32>, tensor<8xf32>) outs(%i : tensor<f32>) -> tensor<f32>
    return %z : tensor<f32>
  }

  // A recurrent step of one sequence. f16 is widened for each product; the sum is in f32.
  // CHECK-LABEL: func.func @one_row(
  // CHECK: linalg.generic {indexing_maps = [#[[LEFT]], #[[RIGHT]], #[[OUT]]], iterator_types = ["parallel", "parallel", "reduction"]}
  // CHECK-DAG: %[[H:.+]] = arith.extf %{{.*}} : f16 to f32
  // CHECK-DAG: %[[W:.+]] = arith.extf %{{.*}} : f16 to f32
  // CHECK: math.fma %[[H]], %[[W]], %{{.*}} : f32
  func.func @one_row(%h: tensor<1x8xf16>, %w: tensor<8x4xf16>, %i: tensor<1x4xf32>) -> tensor<1x4xf32> {
    %y = linalg.matmul ins(%h, %w : tensor<1x8xf16>, tensor<8x4xf16>) outs(%i : tensor<1x4xf32>) -> tensor<1x4xf32>
    return %y : tensor<1x4xf32>
  }

  // The scores of one query; one column; integers.
  // CHECK-LABEL: func.func @others(
  // CHECK-NOT: linalg.batch_matmul
  // CHECK-NOT: linalg.matmul
  // CHECK-NOT: linalg.batch_matvec
  // CHECK: return
  func.func @others(%q: tensor<3x1x8xf32>, %k: tensor<3x8x4xf32>, %s: tensor<3x1x4xf32>,
                    %x: tensor<4x8xf32>, %w: tensor<8x1xf32>, %c: tensor<4x1xf32>,
                    %m: tensor<3x4x8xi32>, %v: tensor<3x8xi32>, %i: tensor<3x4xi32>)
      -> (tensor<3x1x4xf32>, tensor<4x1xf32>, tensor<3x4xi32>) {
    %0 = linalg.batch_matmul ins(%q, %k : tensor<3x1x8xf32>, tensor<3x8x4xf32>) outs(%s : tensor<3x1x4xf32>) -> tensor<3x1x4xf32>
    %1 = linalg.matmul ins(%x, %w : tensor<4x8xf32>, tensor<8x1xf32>) outs(%c : tensor<4x1xf32>) -> tensor<4x1xf32>
    %2 = linalg.batch_matvec ins(%m, %v : tensor<3x4x8xi32>, tensor<3x8xi32>) outs(%i : tensor<3x4xi32>) -> tensor<3x4xi32>
    return %0, %1, %2 : tensor<3x1x4xf32>, tensor<4x1xf32>, tensor<3x4xi32>
  }

  // An outer product is element-wise; what it adds to is an input.
  // CHECK-LABEL: func.func @outer(
  // CHECK-SAME: %[[G:.+]]: tensor<4x1xf32>, %[[X:.+]]: tensor<1x8xf32>, %[[I:.+]]: tensor<4x8xf32>
  // CHECK: linalg.generic {indexing_maps = [#[[COLUMN]], #[[LINE]], #[[ID]], #[[ID]]], iterator_types = ["parallel", "parallel"]} ins(%[[G]], %[[X]], %[[I]]
  // CHECK: ^bb0(%[[A:.+]]: f32, %[[B:.+]]: f32, %[[C:.+]]: f32, %{{.*}}: f32):
  // CHECK-NEXT: math.fma %[[A]], %[[B]], %[[C]] : f32
  func.func @outer(%g: tensor<4x1xf32>, %x: tensor<1x8xf32>, %i: tensor<4x8xf32>) -> tensor<4x8xf32> {
    %y = linalg.matmul ins(%g, %x : tensor<4x1xf32>, tensor<1x8xf32>) outs(%i : tensor<4x8xf32>) -> tensor<4x8xf32>
    return %y : tensor<4x8xf32>
  }

  // Two rows read every weight twice; a convolution and an empty sum stay as well.
  // CHECK-LABEL: func.func @stay(
  // CHECK: linalg.matmul
  // CHECK: linalg.matvec
  // CHECK: linalg.conv_1d
  // CHECK: return
  func.func @stay(%h: tensor<2x8xf32>, %w: tensor<8x4xf32>, %i: tensor<2x4xf32>,
                  %a: tensor<4x0xf32>, %b: tensor<0xf32>, %c: tensor<4xf32>,
                  %f: tensor<3xf32>, %s: tensor<10xf32>, %o: tensor<8xf32>)
      -> (tensor<2x4xf32>, tensor<4xf32>, tensor<8xf32>) {
    %0 = linalg.matmul ins(%h, %w : tensor<2x8xf32>, tensor<8x4xf32>) outs(%i : tensor<2x4xf32>) -> tensor<2x4xf32>
    %1 = linalg.matvec ins(%a, %b : tensor<4x0xf32>, tensor<0xf32>) outs(%c : tensor<4xf32>) -> tensor<4xf32>
    %2 = linalg.conv_1d ins(%s, %f : tensor<10xf32>, tensor<3xf32>) outs(%o : tensor<8xf32>) -> tensor<8xf32>
    return %0, %1, %2 : tensor<2x4xf32>, tensor<4xf32>, tensor<8xf32>
  }
}
